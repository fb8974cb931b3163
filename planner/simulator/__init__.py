"""An event simulator of the decentralised protocol; it shares no cost code with the planners."""
