# SPDX-License-Identifier: Apache-2.0
"""ArrayRecord, records by index as Grain does: 1,000 records in 2 files, a new shuffle of all each epoch, 4 workers of PyTorch."""
import os

import torch
import torch.utils.data
from array_record.python import array_record_module

import trace

FILES, RECORDS = 2, 500


def path_of(root, k):
    return os.path.join(root, f"train.array_record-{k:05}-of-{FILES:05}")


class Records(torch.utils.data.Dataset):
    def __init__(self, root):
        self.root, self.readers = root, None

    def __len__(self):
        return FILES * RECORDS

    def __getitem__(self, i):
        if self.readers is None:  # in the worker
            self.readers = [array_record_module.ArrayRecordReader(path_of(self.root, k), options="readahead_buffer_size:0")
                            for k in range(FILES)]
        return len(self.readers[i // RECORDS].read([i % RECORDS])[0])


def make(root):
    for k in range(FILES):
        writer = array_record_module.ArrayRecordWriter(path_of(root, k), "group_size:1,uncompressed")
        for i in range(RECORDS):
            writer.write(trace.random_bytes(k * RECORDS + i, 40000, 110000))
        writer.close()


def epoch(root, e):
    torch.manual_seed(e)
    loader = torch.utils.data.DataLoader(Records(root), batch_size=16, shuffle=True, num_workers=4)
    assert sum(len(batch) for batch in loader) == FILES * RECORDS


trace.record("array_record", make, epoch)
