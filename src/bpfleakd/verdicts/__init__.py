"""Verdicts on call sites, managed heaps and processes, from their histories. Pure: values in, values out."""
