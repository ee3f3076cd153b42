"""What tracing costs: the figures that bpfleakd promises, measured against its peers in the same run.

    python -m bench.run [--short] [--strict] [BENCHMARK...]     all of them, and results/README.md
    python -m bench.pair [--short]                              one alone, printed

Rules:
- Costs are compared within one run, the ways to trace taking turns; a ratio is the median of the ratios of
  the turns. So a machine that is slow, or has other things to do, changes figures but hardly a ratio.
- Time in a traced program is processor time of that program: what others do beside it does not count.
- A figure of which something is demanded says what, and PASS or FAIL. What cannot be measured says why.
- Whatever was started is ended and whatever was attached is detached, also after an error or a signal.
"""
