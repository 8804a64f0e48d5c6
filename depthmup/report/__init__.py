"""What the rows of a sweep say: curves with verdicts, pictures, report.html (docs/laws.md)."""
