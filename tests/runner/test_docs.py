# SPDX-License-Identifier: Apache-2.0
"""The man pages say what was meant."""
import pathlib

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"


def test_backslashes_in_examples_are_doubled():
    """scdoc takes one away from `'%P\\n'`, also between ``` lines; one at the end of a line stays."""
    pages = sorted(DOCS.glob("*.scd"))
    assert pages
    for page in pages:
        is_literal = False
        for number, line in enumerate(page.read_text().splitlines(), 1):
            if line.startswith("```"):
                is_literal = not is_literal
            elif is_literal:
                assert "\\" not in line.rstrip("\\").replace("\\\\", ""), f"{page.name}:{number}: {line}"
