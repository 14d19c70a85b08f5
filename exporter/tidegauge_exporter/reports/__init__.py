"""HTML reports and pages: evidence, incidents, grades, plots."""
