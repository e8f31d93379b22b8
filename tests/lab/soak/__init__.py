"""`lab soak`: a server under churn, faults, slow readers and hostile frames. Attack, GoodStream, Watch."""
