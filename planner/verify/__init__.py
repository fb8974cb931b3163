"""Whether a plan is what it states: delivery is proved, cost and bound are computed anew; also for its fold."""
