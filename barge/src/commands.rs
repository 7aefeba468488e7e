//! The commands that the program has on every system.

use clap::Subcommand;

use crate::CommandResult;
use crate::files::{self, CatArgs, CpArgs, LsArgs, StatArgs, TreeArgs};
use crate::pack::{self, CheckArgs, PackArgs};

#[derive(Subcommand)]
pub(crate) enum FileCommand {
    /// List directories of a source
    Ls(LsArgs),
    /// Show the attributes of files
    Stat(StatArgs),
    /// Write files to standard output
    Cat(CatArgs),
    /// Copy files between sources
    Cp(CpArgs),
    /// Show a directory as a tree
    Tree(TreeArgs),
    /// Build an image of a tree
    Pack(PackArgs),
    /// Check an image and report its errors
    Check(CheckArgs),
}

impl FileCommand {
    /// Runs the command.
    pub(crate) fn run(&self) -> CommandResult {
        match self {
            FileCommand::Ls(args) => files::ls(args),
            FileCommand::Stat(args) => files::stat(args),
            FileCommand::Cat(args) => files::cat(args),
            FileCommand::Cp(args) => files::cp(args),
            FileCommand::Tree(args) => files::tree(args),
            FileCommand::Pack(args) => pack::pack(args),
            FileCommand::Check(args) => pack::check(args),
        }
    }
}
