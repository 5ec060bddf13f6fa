"""`make failover`: list-append histories through two service nodes while the cluster behind them is harmed."""
