//! Pages of files, which only Linux sends.

/// No pages.
#[derive(Debug)]
pub enum Pages {}
