class PoolLayout:
    pass
