"""Arrays in one anonymous block of memory that other processes can map."""

from __future__ import annotations

import mmap
import os
import weakref

from vecenv.buffers import Block, Layout, create_block_file


class SharedArrays:
    """A block of memory, made here or by another process. Its pages cost memory only once they are written.

    Attributes:
        descriptor: of the block, for other processes.
    """

    def __init__(self, layout: Layout, descriptor: int | None = None) -> None:
        """Map the block.

        Args:
            layout: where everything lies in it.
            descriptor: file to map; None makes a new one, filled with zeros. Owned from now on.

        Raises:
            OSError: the file cannot be made or mapped.
        """
        if descriptor is None:
            descriptor = create_block_file()
            os.ftruncate(descriptor, max(layout.size, mmap.PAGESIZE))
        self.descriptor = descriptor
        self._closer = weakref.finalize(self, os.close, descriptor)
        self._block = Block(layout, descriptor)

    def close(self) -> None:
        """Close the descriptor; the arrays stay valid as long as they are held. May be called again."""
        self._closer()
