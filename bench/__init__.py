"""What tracing costs: the figures that bpfleakd promises, measured against other tools in the same run.

    python -m bench.run [--short] [--strict] [BENCHMARK...]     all of them, and results/README.md
    python -m bench.pair [--short]                              one alone, printed

Rules:
- Costs are compared within one run, in which the ways to trace take turns; a ratio is the median of the
  ratios of the turns. So a slow or busy machine changes figures, but hardly a ratio.
- Time in a traced program is CPU time of that program; other programs' work does not count.
- A figure with a limit states the limit, and PASS or FAIL. A figure that cannot be measured states the
  reason.
- Everything that was started is ended, and everything attached is detached, also after an error or a signal.
"""
