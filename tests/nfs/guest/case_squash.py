# SPDX-License-Identifier: Apache-2.0
"""root_squash: the daemon is root and so nobody at the server. Its callers get what NFS gives them, no less and no more."""
import os

import pytest

from lib import procs

SIZE = 300_000
OWNER, OTHER, GROUP = 4001, 4002, 4003


def exported():
    """As whom the server takes root: what it was told, and what its kernel goes by."""
    return b" ".join([procs.run(["exportfs", "-v"]).out, procs.run(["cat", "/proc/net/rpc/nfsd.export/content"]).out])


@pytest.fixture
def stage(nfs, mount, reader, until):
    """private (0600), group (0640), open (0644), and a folder that only its owner may enter; all the owner's."""
    for i, (name, mode) in enumerate((("private", 0o600), ("group", 0o640), ("open", 0o644))):
        os.chown(nfs.put(name, i + 1, SIZE, mode), OWNER, GROUP)
    os.mkdir(nfs.at_server("inner"))
    os.chown(nfs.put("inner/f", 4, SIZE, 0o600), OWNER, GROUP)
    os.symlink("f", nfs.at_server("inner/link"))
    os.chown(nfs.at_server("inner"), OWNER, GROUP)
    os.chmod(nfs.at_server("inner"), 0o700)
    os.chown(nfs.put("probe", 5, 1, 0o600), OWNER, GROUP)
    nfs.exports("rw,root_squash")

    class Stage:
        owner, other, member, root = reader(uid=OWNER), reader(uid=OTHER), reader(uid=OTHER, groups=[GROUP]), reader()

        @staticmethod
        def mount(**opts):
            # The mount and what is above it must be passable for all.
            folder = nfs.mounted("hard,actimeo=1")
            probe = os.path.join(folder, "probe")
            until(lambda: Stage.root.cat(probe) == "EACCES", 20, lambda: f"NFS itself refuses root: {exported()}")
            hfs = mount(folder, memory="16M", allow_other=True, **opts)
            folder = hfs.folder
            while folder != "/tmp":
                os.chmod(folder, 0o755)
                folder = os.path.dirname(folder)
            return hfs

    return Stage


MODES = [{}, {"nocto": True}, {"immutable": True}]


@pytest.mark.parametrize("opts", MODES)
def test_the_owner_reads_and_nobody_else(stage, opts):
    hfs = stage.mount(**opts)
    for reader in (stage.other, stage.member):
        assert reader.cat(hfs.p("private")) == "EACCES"
        assert reader.cat(hfs.p("inner", "f")) == "EACCES"
    assert stage.other.cat(hfs.p("group")) == "EACCES"
    assert hfs.status()["slots_used"] == 0 and hfs.status()["origin_bytes"] == 0, "nothing was fetched for them"
    assert stage.owner.cat(hfs.p("private")) == [1, SIZE]
    assert stage.owner.cat(hfs.p("inner", "f")) == [4, SIZE]
    assert stage.owner.call("list", hfs.p("inner")) == ["f", "link"]
    assert stage.owner.cat(hfs.p("inner", "link")) == [4, SIZE]
    assert stage.member.cat(hfs.p("group")) == [2, SIZE], "by a supplementary group"
    for reader in (stage.owner, stage.other, stage.root):
        assert reader.cat(hfs.p("open")) == [3, SIZE]
    # All of it is in slots and in the page cache now: still for the same people only.
    for reader in (stage.other, stage.member):
        assert reader.cat(hfs.p("private")) == "EACCES" and reader.cat(hfs.p("inner", "f")) == "EACCES"
    assert stage.other.cat(hfs.p("group")) == "EACCES"
    if not opts:
        seen, plain = stage.root.cat(hfs.p("private")), stage.root.cat(os.path.join(hfs.source, "private"))
        assert seen == plain == "EACCES", f"{seen}, on NFS itself {plain}: {exported()}"


def test_a_fetch_that_must_open_again(stage, until):
    """The descriptor of the first open is closed when idle; the next fetch opens the file anew, as its reader."""
    hfs = stage.mount(chunk="64K")
    assert stage.owner.call("hold", "h", hfs.p("private")) == SIZE
    assert stage.owner.call("pread", "h", 0, 4096) == [1, 4096]
    fds = hfs.descriptors()
    until(lambda: hfs.descriptors() < fds, 20, "the idle descriptor is closed")
    assert stage.owner.call("pread", "h", 65536 * 4, 4096) == [1, 4096]


def test_an_order_is_fetched_as_its_writer(stage, until):
    hfs = stage.mount(gid=GROUP, uid=OWNER)
    procs.run(["setpriv", f"--reuid={OWNER}", f"--regid={OWNER}", "--clear-groups", "bash", "-c",
               f'echo private > "{hfs.ctl}/order"'], check=True)
    until(lambda: hfs.status()["origin_bytes"] >= SIZE, 10, lambda: f"prefetched: {hfs.status()}")
    assert stage.other.cat(hfs.p("private")) == "EACCES"
    assert stage.owner.cat(hfs.p("private")) == [1, SIZE]
    assert hfs.status()["origin_bytes"] == SIZE
