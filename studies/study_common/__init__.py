"""What the studies share: records, a process a core, statistics, pages and plots."""
