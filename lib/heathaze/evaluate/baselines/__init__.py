"""The methods that heathaze is held against, one small file each: reference, epsilon accounting, estimate.

Each is a `heathaze.evaluate.meter.Method`, works on slices x rows x cols counts of any shape (one slice is the 2-D case), and
spends exactly the epsilon of its meter. `heathaze.evaluate.methods` lists them.
"""
