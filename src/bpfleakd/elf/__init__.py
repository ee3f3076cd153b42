"""ELF files: images, symbols and where their debug information is. The lowest layer; knows no process."""
