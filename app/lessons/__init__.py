"""The lessons without their page: short guided traces, each step with a prediction.

``lesson`` (what a step asks, and checking it), ``answers`` (what really happened, read from the trace that
kvsim wrote), ``course_*`` (the lessons themselves), ``progress`` (what was done, for the address).
"""
