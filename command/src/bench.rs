//! Options of `barge bench`, which `barge-bench` carries out: the one definition for both programs'
//! help, man pages and completions.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// The command line of `barge bench`.
#[derive(Args, Clone)]
pub struct BenchArgs {
    /// The table to measure
    pub table: Table,
    /// The files of replay and show
    ///
    /// replay: FILE holds the calls, SOURCE is the tree to make them on. show: FILE was written by
    /// --json, and so was LATER, whose tables replace those of FILE.
    #[arg(value_names = ["FILE", "SOURCE|LATER"], num_args = 0..=2)]
    pub files: Vec<String>,
    /// replay: make each call at its recorded time [default: as fast as possible]
    #[arg(long)]
    pub paced: bool,
    /// replay: also make calls that change the tree; writes write zeros
    #[arg(long)]
    pub changes: bool,
    /// 9p: compare with a server that keeps statistics (serve --http), not one without polling
    #[arg(long, alias = "counted")]
    pub with_statistics: bool,
    /// Few and short runs: a check that the bench works, not a measurement
    ///
    /// System calls are not counted.
    #[arg(long)]
    pub quick: bool,
    /// Runs of each cell [default: 5, with --quick 3]
    ///
    /// For coalescing 5, with --quick 1; for find, image, kept, objects and pack 3, with --quick 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub runs: Option<u16>,
    /// Directory for the files to measure with [default: /dev/shm, or the temporary directory]
    ///
    /// The default of coalescing, image, kept and objects is always the temporary directory.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Size of the files of readplus, coalescing and kept
    ///
    /// The default of readplus is 32, with --quick 8; of coalescing and kept 128, with --quick 32.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u16).range(1..))]
    pub size: Option<u16>,
    /// find: files in the tree to list [default: 100000, with --quick 20000]
    #[arg(long = "files", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub files_in_tree: Option<u32>,
    /// Measure while N threads keep processors busy, at normal priority
    ///
    /// Shows the performance that remains when processors are scarce.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=1024))]
    pub busy: u16,
    /// crowd: number of hostile connections
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u16).range(1..))]
    pub connections: u16,
    /// Measure only rows whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Also measure kernel clients in virtual machines (needs barge-guest)
    ///
    /// Adds servers with default options, caches of the 9P client, and READ_PLUS to the tables all,
    /// virtiofs, 9p, nfs, coalescing and readplus.
    #[arg(long)]
    pub guest: bool,
    /// Program to measure [default: the barge that was started, or that is installed]
    #[arg(long, value_name = "PATH")]
    pub barge: Option<PathBuf>,
    /// Files to write, in addition to the terminal.
    #[command(flatten)]
    pub outputs: Outputs,
}

/// A table, or another thing to do with results or call logs.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Table {
    /// All tables except replay and show; if one fails, the others go on
    All,
    /// 9P over Unix sockets and TCP, compared with diod
    #[value(name = "9p")]
    P9,
    /// `barge mount` of 9P, NFS and virtiofs, coalesced and uncoalesced; needs root and fio
    Coalescing,
    /// `barge mount` of 9P and of NFS listing many files: rate and memory; needs root
    Find,
    /// A 9P and an NFS client while thousands of hostile connections are open; needs root
    Crowd,
    /// Node.js and a JDK from images, compared with the kernel and FUSE tools; needs root
    Image,
    /// `barge mount` of a 9P server 1 ms away, with and without cache_dir=; needs root
    #[value(alias = "kept")]
    DiskCache,
    /// A client with small requests, alone and beside one with many large ones; needs root
    Fairness,
    /// Whether limits of a share are held, and the cost of one that is not reached
    Limits,
    /// `barge mount` of a directory, compared with bindfs; needs root
    Mount,
    /// NFS over loopback TCP, compared with nfs-ganesha
    Nfs,
    /// Node.js from an image in an object store 20 ms away, with and without a read trace
    Objects,
    /// Sizes and build times of images made by `barge pack`, mkfs.erofs and mksquashfs
    Pack,
    /// Files of data and holes over each version of NFS, with and without READ_PLUS; needs root
    Readplus,
    /// Replay recorded calls (`barge serve --record-calls`) on any source: `replay FILE SOURCE`
    Replay,
    /// Render the report of results written by --json: `show FILE [LATER]`
    Show,
    /// virtiofs without a virtual machine, compared with virtiofsd
    Virtiofs,
    /// 9P with and without zero copy, by block size, over Unix sockets, TCP and a virtqueue
    Zerocopy,
}

/// The output files of a report, in addition to the terminal.
#[derive(Args, Clone, Default)]
pub struct Outputs {
    /// Also write the results to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also write the results to FILE as an HTML page with plots
    ///
    /// The page has no scripts and no external resources.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Also write the results to PATH as Markdown: a file, or an existing directory
    ///
    /// A directory gets a file for each table.
    #[arg(long, value_name = "PATH")]
    pub markdown: Option<PathBuf>,
}

impl Table {
    /// Returns the name on the command line.
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or(String::new(), |value| value.get_name().to_owned())
    }
}
