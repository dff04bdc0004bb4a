# SPDX-License-Identifier: Apache-2.0
"""PyTorch's DataLoader over a file a sample (ImageFolder's shape): 800 files, a new shuffle each epoch, 4 workers."""
import os

import torch
import torch.utils.data

import trace

FILES = 800


class Folder(torch.utils.data.Dataset):
    def __init__(self, root):
        self.root = root

    def __len__(self):
        return FILES

    def __getitem__(self, i):
        with open(os.path.join(self.root, f"c{i % 8}", f"img{i:04}.jpg"), "rb") as f:
            return len(f.read())


def make(root):
    for i in range(FILES):
        os.makedirs(os.path.join(root, f"c{i % 8}"), exist_ok=True)
        with open(os.path.join(root, f"c{i % 8}", f"img{i:04}.jpg"), "wb") as f:
            f.write(trace.random_bytes(i, 20000, 120000))


def epoch(root, e):
    torch.manual_seed(e)
    loader = torch.utils.data.DataLoader(Folder(root), batch_size=16, shuffle=True, num_workers=4)
    assert sum(len(batch) for batch in loader) == FILES


trace.record("torch_files", make, epoch)
