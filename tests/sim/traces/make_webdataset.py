# SPDX-License-Identifier: Apache-2.0
"""WebDataset over tar shards: 32 shards of about 3 MiB, shards shuffled each epoch, a shuffle buffer, 4 workers."""
import io
import os
import tarfile

import torch
import webdataset as wds

import trace

SHARDS, SAMPLES = 32, 40


def make(root):
    for s in range(SHARDS):
        with tarfile.open(os.path.join(root, f"shard-{s:06}.tar"), "w") as tar:
            for i in range(SAMPLES):
                for ext, data in (("jpg", trace.random_bytes(s * SAMPLES + i, 40000, 110000)), ("cls", b"%d" % (i % 10))):
                    info = tarfile.TarInfo(f"{s:03}{i:03}.{ext}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))


def epoch(root, e):
    torch.manual_seed(e)
    urls = [os.path.join(root, f"shard-{s:06}.tar") for s in range(SHARDS)]
    data = wds.WebDataset(urls, shardshuffle=100, seed=e, workersplitter=wds.split_by_worker).shuffle(100)
    loader = torch.utils.data.DataLoader(data.batched(16), num_workers=4, batch_size=None)
    assert sum(len(batch["jpg"]) for batch in loader) == SHARDS * SAMPLES


trace.record("webdataset", make, epoch)
