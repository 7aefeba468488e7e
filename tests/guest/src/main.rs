//! The command line of the guest harness.
//!
//! Exit status: the script's own; 124 on a timeout; 125 if the harness failed; 77 with a reason if
//! no guest can run here.

use std::io::stdout;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use barge_guest::bench::{self, Protocol, Table};
use barge_guest::config::{GuestConfig, Mount, VirtiofsDevice};
use barge_guest::guest::Case;
use barge_guest::host_mount::{self, HostMount};
use barge_guest::kernel::{self, Kernel};
use barge_guest::machine::Machine;
use barge_guest::run::Plan;
use barge_guest::{
    Dirs, TimedOut, Unavailable, erofs_utils, local, matrix, migrate, mounts, run, tlshd, tools,
};
use clap::{Args, Parser, Subcommand};

/// Boots a Linux guest on a served tree and runs scripts in it.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Serve a directory, mount it in a guest, run a script there
    Run(RunArgs),
    /// Run a script on this host, in a directory or in a mount of `barge mount`
    Local(LocalArgs),
    /// Run every script with every kernel and kind of mount
    Matrix(MatrixArgs),
    /// Migrate a guest that works on a virtiofs share from one QEMU to the next
    Migrate(MigrateArgs),
    /// Measure servers with default options through plain mounts, alternating: virtiofs, 9P, NFS
    #[command(alias = "fio")]
    Defaults(DefaultsArgs),
    /// Read files of data and holes over NFSv4.2, with READ_PLUS and READ alternating
    Readplus(BenchArgs),
    /// Read and write a file with each cache mode of the kernel's 9P client, and with `barge mount`
    Caches(BenchArgs),
    /// Download kernels, busybox and the tools of the scripts to the cache
    Fetch(FetchArgs),
    /// Download the EROFS tools of a newer Debian, and print their directory
    ErofsUtils {
        /// Debian mirror [default: that of this host's apt]
        #[arg(long, value_name = "URI")]
        mirror: Option<String>,
    },
}

#[derive(Args)]
struct Script {
    /// Shell text to run instead of a script file
    #[arg(short = 'c', value_name = "TEXT", conflicts_with = "script")]
    text: Option<String>,
    /// Script to run: a path, or the name of one in tests/guest/scripts
    #[arg(required_unless_present = "text")]
    script: Option<PathBuf>,
    /// Arguments for the script
    #[arg(last = true)]
    args: Vec<String>,
    /// Environment variable of the script
    #[arg(short, long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// Keep the directory of the run
    #[arg(long)]
    keep: bool,
}

#[derive(Args)]
struct LocalArgs {
    #[command(flatten)]
    script: Script,
    /// Server whose share to mount with `barge mount`
    ///
    /// dir is a directory without a server; 9p, 9p-handed, nfs3, nfs4.2 and virtiofs are barge's;
    /// others are diod, virtiofsd, ganesha-nfs3 and ganesha-nfs4.1.
    #[arg(long, value_name = "SERVER", value_parser = host_mount::named)]
    mount: Option<&'static HostMount>,
    /// The barge to test [default: the one beside this program]
    #[arg(long, value_name = "PATH", requires = "mount")]
    barge: Option<PathBuf>,
    /// Mount options
    #[arg(short, long = "options", value_name = "OPTIONS", requires = "mount")]
    options: Vec<String>,
}

#[derive(Args)]
struct FetchArgs {
    /// Kernels to download [default: all]
    kernels: Vec<String>,
    /// Debian mirror [default: that of this host's apt]
    #[arg(long, value_name = "URI")]
    mirror: Option<String>,
}

#[derive(Args)]
struct RunArgs {
    #[command(flatten)]
    script: Script,
    /// Kernel line: 6.1, 6.12, sid (7.2 or later, on user-mode Linux), or newest
    ///
    /// newest is the newest of sid and 6.12 that starts on user-mode Linux here, and otherwise 6.12
    /// on QEMU.
    #[arg(short, long, default_value = kernel::NEWEST)]
    kernel: String,
    /// Command that serves {share} on address {listen} and {port}, or Unix {socket}; may be given
    /// twice
    ///
    /// The second command uses {port2} and {socket2}. {listen} may be loopback's 127.0.0.1, but
    /// then the guest runs on QEMU.
    #[arg(short, long, value_name = "COMMAND")]
    serve: Vec<String>,
    /// Kind of mount of the matrix with default options, in place of --serve and --type
    ///
    /// `knfsd-` before one of NFS 4 mounts from a second guest, whose kernel serves ext4.
    #[arg(long, value_name = "MOUNT",
          conflicts_with_all = ["serve", "kind", "options", "device", "qemu", "cpus"])]
    mount: Option<String>,
    /// The barge to test with --mount [default: the one beside this program]
    #[arg(long, value_name = "PATH", requires = "mount")]
    barge: Option<PathBuf>,
    /// Type of file system to mount: 9p, nfs, virtiofs, tmpfs
    ///
    /// For virtiofs the guest has a device at {socket}, unless --qemu adds one. User-mode Linux
    /// takes its tag from the server.
    #[arg(short = 't', long = "type", default_value = "9p")]
    kind: String,
    /// Mount options, in addition to those of the type
    #[arg(short, long = "options", value_name = "OPTIONS")]
    options: Vec<String>,
    /// Mount device [default: that of the type]
    #[arg(long)]
    device: Option<String>,
    /// Directory to serve [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    share: Option<PathBuf>,
    /// Argument for QEMU, with placeholders as in --serve; may be repeated
    #[arg(long, allow_hyphen_values = true, value_name = "ARGUMENT")]
    qemu: Vec<String>,
    /// Number of the guest's processors
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    cpus: u16,
    /// Time until the guest is killed, seconds
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    timeout: u64,
    #[command(flatten)]
    machine: MachineArgs,
}

#[derive(Args)]
struct MatrixArgs {
    /// Use small sizes, and few pairs of kernel and mount unless some are named
    #[arg(long)]
    quick: bool,
    /// Only this kernel: 6.1, 6.12, sid or newest
    #[arg(short, long = "kernel", value_name = "LINE")]
    kernels: Vec<String>,
    /// Only this kind of mount; may be repeated
    ///
    /// none, mmap, loose (9P's cache modes), 9p-virtio (needs QEMU 10.2), connect, connect-mmap,
    /// mount-9p, mount-nfs4.2, virtiofs, virtiofs-4q, virtiofs-never, virtiofsd, nfs3,
    /// nfs3-locks, nfs4.0, nfs4.1, nfs4.2
    #[arg(short, long = "mount", alias = "way", value_name = "MOUNT")]
    mounts: Vec<String>,
    /// Only this script
    #[arg(long = "script", value_name = "NAME")]
    scripts: Vec<String>,
    /// The barge to test [default: the one beside this program]
    #[arg(long, value_name = "PATH", conflicts_with = "serve")]
    barge: Option<PathBuf>,
    /// Command that serves {share} on address {listen} and {port}, to try another server
    #[arg(short, long, value_name = "COMMAND")]
    serve: Option<String>,
    /// Number of guests at a time
    #[arg(short, long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    jobs: u16,
    /// Mount options besides the cache mode
    #[arg(short, long = "options", value_name = "OPTIONS")]
    options: Vec<String>,
    /// Environment variable of the scripts, such as KILLS=100; may be repeated
    #[arg(short, long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// Markdown file whose section of results is replaced
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Time until a guest is killed, for all its scripts, seconds
    #[arg(long, default_value_t = 3600, value_name = "SECONDS")]
    timeout: u64,
    #[command(flatten)]
    machine: MachineArgs,
}

#[derive(Args)]
struct MigrateArgs {
    /// Kernel line
    #[arg(short, long, default_value = "6.12")]
    kernel: String,
    /// Number of migrations in a row
    #[arg(long, default_value_t = 2)]
    rounds: u16,
    /// Then save the guest to a file, and restore it twice, each time on a copy of the share
    #[arg(long)]
    snapshot: bool,
    /// Copy the guest's memory, as a migration to another host does
    ///
    /// By default all machines map the same memory: QEMU 10 with tcg may lose a write of the guest
    /// while it copies its memory, with any server, and a program of the guest crashes.
    #[arg(long)]
    copy_memory: bool,
    /// How the servers find the guest's files again: find-paths or file-handles
    #[arg(long, value_name = "MODE", default_value = "find-paths")]
    mode: String,
    /// The barge to test [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    barge: Option<PathBuf>,
    /// Command of another server to test, such as virtiofsd
    ///
    /// It gets virtiofsd's options for a share. A migration that it refuses is no error.
    #[arg(long, value_name = "COMMAND", conflicts_with = "barge")]
    server: Option<String>,
    /// Debian mirror [default: that of this host's apt]
    #[arg(long, value_name = "URI")]
    mirror: Option<String>,
    /// Time until the test fails, seconds
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    timeout: u64,
    /// Keep the directory of the run
    #[arg(long)]
    keep: bool,
}

#[derive(Args)]
struct DefaultsArgs {
    /// Only this protocol
    #[arg(long, value_name = "PROTOCOL")]
    only: Option<Protocol>,
    /// The time of each load, seconds
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    seconds: u16,
    /// The virtiofsd to measure [default: that of the search path]
    #[arg(long, value_name = "PATH")]
    virtiofsd: Option<PathBuf>,
    #[command(flatten)]
    bench: BenchArgs,
}

#[derive(Args)]
struct BenchArgs {
    /// Kernel line
    #[arg(short, long, default_value = "6.12")]
    kernel: String,
    /// How often each thing is measured [default: 3 for defaults, 5 for readplus and caches]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// Size of the file [default: 128 for defaults, 32 for readplus and caches]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u16).range(1..))]
    size: Option<u16>,
    /// The barge to test [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    barge: Option<PathBuf>,
    /// Also tell all runs in a line of JSON, as `barge bench` wants them
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    machine: MachineArgs,
}

#[derive(Args)]
struct MachineArgs {
    /// QEMU's accelerator, or `uml` for user-mode Linux
    ///
    /// User-mode Linux needs root, and has no devices of QEMU. By default, tests use it where it
    /// has the devices that a script needs, and otherwise QEMU with tcg; measurements use QEMU.
    #[arg(long, value_name = "ACCEL")]
    accel: Option<Machine>,
    /// Debian mirror [default: that of this host's apt]
    #[arg(long, value_name = "URI")]
    mirror: Option<String>,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Subcommands::Run(args) => run_one(args),
        Subcommands::Local(args) => run_local(args),
        Subcommands::Matrix(args) => run_matrix(args),
        Subcommands::Migrate(args) => run_migrate(args),
        Subcommands::Defaults(args) => run_defaults(args),
        Subcommands::Readplus(args) => run_bench(Table::Readplus, args),
        Subcommands::Caches(args) => run_bench(Table::Caches, args),
        Subcommands::Fetch(args) => fetch(args),
        Subcommands::ErofsUtils { mirror } => fetch_erofs_utils(mirror.as_deref()),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("barge-guest: {error:#}");
            ExitCode::from(if error.is::<TimedOut>() {
                124
            } else if error.is::<Unavailable>() {
                77
            } else {
                125
            })
        }
    }
}

fn run_one(args: RunArgs) -> Result<u8> {
    let dirs = Dirs::find()?;
    let (server_commands, guests) = match &args.mount {
        Some(name) => mounts::plain(name, &dirs.barge(args.barge.as_deref())?)?,
        None => (args.serve.clone(), vec![args.guest_config()]),
    };
    let plan = Plan {
        kernel: args.kernel,
        server_commands,
        guests,
        root: None,
        share: args.share,
        cases: vec![args.script.case(&dirs)?],
        case_timeout: Duration::from_secs(args.timeout),
        timeout: Duration::from_secs(args.timeout),
        machine: args.machine.accel,
        mirror: args.machine.mirror,
        keep: args.script.keep,
    };
    run_plan(&dirs, &plan)
}

impl RunArgs {
    /// Returns the guest of the options besides --mount.
    fn guest_config(&self) -> GuestConfig {
        let mount = Mount::usual(&self.kind, self.device.clone(), &self.options);
        let virtiofs = match mount.fs_type.as_str() {
            "virtiofs" if self.qemu.is_empty() => vec![VirtiofsDevice {
                tag: mount.device.clone(),
                socket: "{socket}".into(),
                queues: 1,
            }],
            _ => Vec::new(),
        };
        GuestConfig {
            mount,
            extra_fs_types: Vec::new(),
            cpus: self.cpus,
            virtiofs,
            qemu: self.qemu.clone(),
        }
    }
}

/// Runs a plan with one case, and returns its exit status.
fn run_plan(dirs: &Dirs, plan: &Plan) -> Result<u8> {
    let outcome = run::run(dirs, plan, stdout, |_| ())?;
    let complaints: Vec<_> = outcome
        .cases
        .iter()
        .flat_map(|case| &case.kernel_errors)
        .chain(&outcome.kernel_errors)
        .collect();
    for line in &complaints {
        eprintln!("barge-guest: kernel: {line}");
    }
    if let Some(broken) = outcome.failure {
        return Err(broken.into_error());
    }
    let case = outcome.cases.first().context("the guest ran nothing")?;
    eprintln!(
        "barge-guest: booted in {:.1} s, ran {:.1} s, status {}",
        outcome.boot.as_secs_f32(),
        case.duration.as_secs_f32(),
        case.status
    );
    Ok(match u8::try_from(case.status).unwrap_or(u8::MAX) {
        0 if !complaints.is_empty() => 125,
        status => status,
    })
}

fn run_local(args: LocalArgs) -> Result<u8> {
    let dirs = Dirs::find()?;
    let case = args.script.case(&dirs)?;
    let status = match args.mount {
        None => local::run(&dirs, &case, args.script.keep)?,
        Some(host_mount) => {
            let barge = dirs.barge(args.barge.as_deref())?;
            let what = (host_mount, &*barge, &*args.options);
            host_mount::run(&dirs, &case, what, args.script.keep)?
        }
    };
    Ok(u8::try_from(status).unwrap_or(u8::MAX))
}

fn run_matrix(args: MatrixArgs) -> Result<u8> {
    let options = matrix::Options {
        quick: args.quick,
        kernels: args.kernels,
        mounts: args.mounts,
        scripts: args.scripts,
        serve: args.serve,
        barge: args.barge,
        jobs: args.jobs.into(),
        options: args.options,
        env: args.env,
        timeout: Duration::from_secs(args.timeout),
        machine: args.machine.accel,
        mirror: args.machine.mirror,
        report: args.report,
    };
    Ok(if matrix::run(&Dirs::find()?, &options)? {
        0
    } else {
        1
    })
}

fn run_migrate(args: MigrateArgs) -> Result<u8> {
    let dirs = Dirs::find()?;
    let server = match args.server {
        Some(command) => migrate::Program::Virtiofsd(command),
        None => migrate::Program::Barge(dirs.barge(args.barge.as_deref())?),
    };
    let options = migrate::Options {
        kernel: args.kernel,
        rounds: args.rounds,
        snapshot: args.snapshot,
        copy_memory: args.copy_memory,
        mode: args.mode,
        server,
        mirror: args.mirror,
        timeout: Duration::from_secs(args.timeout),
        keep: args.keep,
    };
    migrate::run(&dirs, &options)?;
    Ok(0)
}

fn run_defaults(args: DefaultsArgs) -> Result<u8> {
    let table = Table::Defaults {
        only: args.only,
        seconds: args.seconds,
        virtiofsd: args.virtiofsd,
    };
    run_bench(table, args.bench)
}

fn run_bench(table: Table, args: BenchArgs) -> Result<u8> {
    let options = bench::Options {
        kernel: args.kernel,
        rounds: args.rounds,
        size: args.size,
        barge: args.barge,
        json: args.json,
        machine: args.machine.accel.unwrap_or_else(Machine::qemu),
        mirror: args.machine.mirror,
    };
    let (dirs, disk) = (Dirs::find()?, bench::RamDisk::new()?);
    run_plan(&dirs, &bench::plan(&dirs, table, options, &disk)?)
}

fn fetch(args: FetchArgs) -> Result<u8> {
    let dirs = Dirs::find()?;
    let all = || {
        kernel::LINES
            .iter()
            .map(|line| line.name.to_owned())
            .collect()
    };
    for line in if args.kernels.is_empty() {
        all()
    } else {
        args.kernels
    } {
        for machine in [Machine::qemu(), Machine::UserMode] {
            let has = |known: &&kernel::Line| known.name == line && !known.is_for(&machine);
            if kernel::LINES.iter().find(has).is_none() {
                Kernel::get(&dirs.cache, &line, &machine, args.mirror.as_deref())?;
            }
        }
        println!("kernel {line}");
    }
    kernel::busybox(&dirs.cache, args.mirror.as_deref())?;
    println!("busybox");
    tlshd::get(&dirs.cache, args.mirror.as_deref())?;
    println!("tlshd");
    tools::install(&dirs)?;
    println!("tools");
    Ok(0)
}

fn fetch_erofs_utils(mirror: Option<&str>) -> Result<u8> {
    let bin = erofs_utils::get(&Dirs::find()?.cache, mirror)?;
    println!("{}", bin.display());
    Ok(0)
}

impl Script {
    fn case(&self, dirs: &Dirs) -> Result<Case> {
        let (program, args) = match (&self.text, &self.script) {
            (Some(text), _) => {
                let words = ["-c", text, "sh"].map(str::to_owned);
                (
                    PathBuf::from("sh"),
                    words.into_iter().chain(self.args.iter().cloned()).collect(),
                )
            }
            (None, Some(script)) => {
                let path = if script.exists() {
                    script.clone()
                } else {
                    dirs.scripts.join(script)
                };
                (
                    path.canonicalize()
                        .with_context(|| format!("no script {}", script.display()))?,
                    self.args.clone(),
                )
            }
            (None, None) => unreachable!("clap asks for one of them"),
        };
        Ok(Case::program("script", &program, &args, &self.env))
    }
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.into(), value.into()))
}
