//! The file-system objects that the state stores without knowing them.

/// The types of a file tree's objects, as opens, locks and delegations store them.
pub trait Tree {
    /// An open file: of an open or a delegation. Dropping the last clone closes it.
    type File: Clone;
    /// A node, with which locks are released and callbacks name the file.
    type Node: Clone;
}
