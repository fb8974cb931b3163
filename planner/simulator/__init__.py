"""An event simulator of the decentralised protocol.

It shares no cost code with the planners, and may import only the data that they share: relation, trees, plan.
"""
