"""Pools of providers behind one API: configuration, members, pools, their cache, and the unified API's routes."""
