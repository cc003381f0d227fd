"""The screens of a live cluster as pure functions: facts in, a `Screen` out.

Start with `view`, which has the parts of a screen; one template draws all screens, and their JSON twins have the same
rows.
"""
