"""From a graph to each rank's share: partition, relation, plan, proof, programs; cache and part files.

Imports every folder before it on the way of the data, and no transport.
"""
