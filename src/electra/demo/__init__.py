"""The whole way in a few minutes, on real English that comes with a small package."""
