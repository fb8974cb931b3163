"""Near-optimal plans with a proven bound, by column generation (Dantzig and Wolfe, 1960).

Folders are the algorithm's steps in the order of their imports: ``pricing`` finds the cheapest trees of all classes at
given prices (states.py, tree_program.py) and what they load (flows.py: a column); ``master`` raises the prices of busy
connections and combines the columns (fractional.py, restricted_master.py), and proves bounds (price_bound.py);
``rounding`` makes whole trees of vertices (bundles.py), which ``improvement`` exchanges while the exact time falls; and
``search`` tries numbers of stages and keeps the best plan and bound: begin with stage_search.py. Outside this package
they import the planner's plain data and :mod:`dgcl.planner.bounds`.
"""
