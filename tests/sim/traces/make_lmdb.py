# SPDX-License-Identifier: Apache-2.0
"""LMDB, read only through its mapping: 600 values, a new shuffle each epoch, 4 workers of PyTorch's DataLoader."""
import os

import lmdb
import torch
import torch.utils.data

import trace

VALUES = 600


class Values(torch.utils.data.Dataset):
    def __init__(self, root):
        self.root, self.env = root, None

    def __len__(self):
        return VALUES

    def __getitem__(self, i):
        if self.env is None:  # in the worker
            self.env = lmdb.open(os.path.join(self.root, "train.lmdb"), subdir=False, readonly=True, lock=False)
        with self.env.begin() as txn:
            return len(txn.get(b"%06d" % i))


def make(root):
    env = lmdb.open(os.path.join(root, "train.lmdb"), subdir=False, map_size=1 << 30)
    with env.begin(write=True) as txn:
        for i in range(VALUES):
            txn.put(b"%06d" % i, trace.random_bytes(i, 40000, 110000))
    env.close()
    os.unlink(os.path.join(root, "train.lmdb-lock"))


def epoch(root, e):
    torch.manual_seed(e)
    loader = torch.utils.data.DataLoader(Values(root), batch_size=16, shuffle=True, num_workers=4)
    assert sum(len(batch) for batch in loader) == VALUES


trace.record("lmdb", make, epoch)
