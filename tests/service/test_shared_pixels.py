from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing

import numpy as np
import pytest

from service.shared_pixels import SharedPixels

SMALL = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)


@pytest.mark.process
def test_another_process_reads_and_overwrites_what_was_written() -> None:
    program = (
        "import sys; from service.shared_pixels import SharedPixels\n"
        "theirs = SharedPixels(int(sys.argv[1])); theirs.write(theirs.read((2, 2, 3)) + 1)"
    )
    with closing(SharedPixels()) as ours:
        ours.write(SMALL)
        number = ours.fileno()
        subprocess.run([sys.executable, "-c", program, str(number)], check=True, pass_fds=[number])
        np.testing.assert_array_equal(ours.read((2, 2, 3)), SMALL + 1)


def test_pixels_that_are_not_contiguous_arrive_in_order() -> None:
    with closing(SharedPixels()) as shared:
        shared.write(SMALL[::-1])
        np.testing.assert_array_equal(shared.read(SMALL.shape), SMALL[::-1])


def test_less_than_expected_is_an_error() -> None:
    with closing(SharedPixels()) as shared:
        shared.write(SMALL)
        with pytest.raises(EOFError, match="12 of 27 bytes"):
            shared.read((3, 3, 3))


def test_closed_twice_it_leaves_a_file_alone_that_came_since() -> None:
    shared = SharedPixels()
    shared.close()
    other = os.open(os.devnull, os.O_RDONLY)
    shared.close()
    os.close(other)
