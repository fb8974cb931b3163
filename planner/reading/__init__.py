"""What a person wants to see of a plan: report, one screen, the trees of a class, pictures."""
