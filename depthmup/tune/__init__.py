"""The calls that train a user's model many times: `m.sweep`, `m.tune`, and `m.tune(target=)`."""
