//! The use of processors, on systems that do not report it to every program.

/// Returns the number of running threads of the machine: unknown.
pub fn running_threads() -> Option<usize> {
    None
}

/// Returns the number of processors of the machine; 1 if it is unknown.
pub fn online_processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
