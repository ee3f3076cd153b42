"""DWARF register numbers of x86-64 (System V ABI, AMD64 supplement, figure 3.36)."""

from __future__ import annotations

RBP = 6
RSP = 7
RIP = 16
