//! Ganesha.
