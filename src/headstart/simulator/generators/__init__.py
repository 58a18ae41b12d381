"""Workloads that are drawn: each a pure function of a frozen configuration and a seed."""
