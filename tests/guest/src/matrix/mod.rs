//! The matrix: every script with every kernel and mount configuration, one boot for all scripts of
//! a pair, and a table of results.
//!
//! If a guest dies, one script fails and the remaining ones run in a new guest.

mod report;
mod scripts;
mod setup;

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use self::report::{table, with_section};
use self::scripts::{SCRIPTS, Script};
use self::setup::SetupConfig;
use crate::guest::{CaseResult, Outcome};
use crate::kernel::{self, LINES, NEWEST};
use crate::machine::{Machine, has_device};
use crate::mounts::{MOUNT_CONFIGS, MountConfig};
use crate::run::{self, Plan};
use crate::{Dirs, Unavailable, tools};

/// The pairs of a quick run with their scripts, the longest first: an old and a new kernel with
/// each protocol, in its usual configuration. 9P's is not that of the newest kernel, which loses
/// data (`supports_kernel`).
const QUICK_PAIRS: &[(&str, &str, ScriptSubset)] = &[
    ("6.12", "virtiofs-4q", ScriptSubset::All),
    ("6.12", "mmap", ScriptSubset::All),
    (NEWEST, "nfs4.2", ScriptSubset::All),
    (NEWEST, "virtiofs", ScriptSubset::Core),
    ("6.1", "nfs3", ScriptSubset::All),
    ("6.1", "none", ScriptSubset::Core),
    ("6.1", "virtiofsd", ScriptSubset::Core),
];

/// The scripts that a pair runs, of those that fit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ScriptSubset {
    All,
    /// The scripts that fail most often, and those that need a boot of their own: used if another
    /// kernel runs all.
    Core,
}

/// A column of the table.
struct Pair {
    kernel: &'static str,
    mount: &'static MountConfig,
    subset: ScriptSubset,
}

/// Options of a matrix run.
pub struct Options {
    /// Use small sizes and few pairs.
    pub quick: bool,
    /// Kernels to run; all if empty.
    pub kernels: Vec<String>,
    /// Mount configurations to run: cache modes of 9P, `virtiofs`, and so on; all if empty.
    pub mounts: Vec<String>,
    /// Scripts to run; all if empty.
    pub scripts: Vec<String>,
    /// The command that serves `{share}` on `{port}`; barge if none.
    pub serve: Option<String>,
    /// The barge under test; that of this program's profile if none.
    pub barge: Option<PathBuf>,
    /// Number of concurrent guests.
    pub jobs: usize,
    /// Mount options besides the cache mode.
    pub options: Vec<String>,
    /// Environment variables of scripts, in place of the matrix's.
    pub env: Vec<(String, String)>,
    /// Timeout of one boot.
    pub timeout: Duration,
    /// The machine; the fastest one that has a script's devices if none.
    pub machine: Option<Machine>,
    /// The Debian mirror, if not the machine's own.
    pub mirror: Option<String>,
    /// A Markdown file whose results section is replaced.
    pub report: Option<PathBuf>,
}

/// The result of a script with a kernel and a mount configuration.
#[derive(Clone, Debug, PartialEq)]
enum Verdict {
    Passed(Duration),
    Failed(String),
    Skipped,
}

/// The results of a pair, in script order.
struct Column {
    kernel: String,
    mount: &'static str,
    boot: Duration,
    cells: Vec<(&'static str, Verdict)>,
}

/// Runs the matrix, prints its table and returns whether nothing failed.
pub fn run(dirs: &Dirs, options: &Options) -> Result<bool> {
    let scripts: Vec<&Script> = SCRIPTS
        .iter()
        .filter(|script| is_selected(&options.scripts, script.name))
        .collect();
    for name in &options.scripts {
        ensure!(
            SCRIPTS.iter().any(|script| script.name == name),
            "no script {name:?} in the matrix"
        );
    }
    let barge = dirs.barge(options.barge.as_deref())?;
    tools::install(dirs)?;

    let pairs = pairs(options);
    ensure!(
        !pairs.is_empty(),
        "no kernel and kind of mount matches, or QEMU lacks a device for it"
    );
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<(usize, Column)>> {
        let mut done = Vec::new();
        while let Some((index, pair)) = Some(next.fetch_add(1, Ordering::Relaxed))
            .and_then(|index| Some((index, pairs.get(index)?)))
        {
            done.push((index, column(dirs, options, &barge, pair, &scripts)?));
        }
        Ok(done)
    };
    let mut columns: Vec<(usize, Column)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..options.jobs).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("a worker does not panic"))
            .collect::<Result<Vec<_>>>()
    })?
    .into_iter()
    .flatten()
    .collect();
    columns.sort_by_key(|(index, _)| *index);
    let columns: Vec<Column> = columns.into_iter().map(|(_, column)| column).collect();

    let table = table(&columns);
    print!("\n{table}");
    for column in &columns {
        for (name, verdict) in &column.cells {
            if let Verdict::Failed(why) = verdict {
                println!("failed: {} {} {name}: {why}", column.kernel, column.mount);
            }
        }
    }
    if let Some(report) = &options.report {
        let old = fs::read_to_string(report).unwrap_or_default();
        fs::write(report, with_section(&old, &table))
            .with_context(|| format!("cannot write {}", report.display()))?;
    }
    let count = |is: fn(&Verdict) -> bool| {
        columns
            .iter()
            .flat_map(|column| &column.cells)
            .filter(|(_, verdict)| is(verdict))
            .count()
    };
    let failed = count(|verdict| matches!(verdict, Verdict::Failed(_)));
    if count(|verdict| *verdict != Verdict::Skipped) == 0 {
        bail!(Unavailable("no script has a kernel here".into()));
    }
    println!(
        "{} passed, {failed} failed, {} skipped",
        count(|verdict| matches!(verdict, Verdict::Passed(_))),
        count(|verdict| *verdict == Verdict::Skipped)
    );
    Ok(failed == 0)
}

fn pairs(options: &Options) -> Vec<Pair> {
    let narrowed = !options.kernels.is_empty() || !options.mounts.is_empty();
    let all: Vec<Pair> = if options.quick && !narrowed {
        let mount = |name| MOUNT_CONFIGS.iter().find(|mount| mount.name == name);
        let pairs = QUICK_PAIRS.iter().filter_map(|&(kernel, name, part)| {
            let mount = mount(name)?;
            Some(Pair {
                kernel,
                mount,
                subset: part,
            })
        });
        pairs.collect()
    } else {
        let part = ScriptSubset::All;
        let lines = LINES.iter().map(|line| line.name);
        // It repeats one of the others, so it is run only if it is named.
        let newest = Some(NEWEST).filter(|_| options.kernels.iter().any(|it| it == NEWEST));
        let all = lines.chain(newest).flat_map(|kernel| {
            MOUNT_CONFIGS.iter().map(move |mount| Pair {
                kernel,
                mount,
                subset: part,
            })
        });
        all.filter(|Pair { kernel, mount, .. }| {
            is_selected(&options.kernels, kernel) && is_selected(&options.mounts, mount.name)
        })
        .collect()
    };
    let here = |Pair { kernel, mount, .. }: &Pair| {
        mount.supports_kernel(kernel) && mount.required_device().is_none_or(has_device)
    };
    all.into_iter().filter(here).collect()
}

fn is_selected(names: &[String], name: &str) -> bool {
    names.is_empty() || names.iter().any(|one| one == name)
}

/// Runs all scripts of a pair, in as few boots as their setups and the guest's health allow.
fn column(
    dirs: &Dirs,
    options: &Options,
    barge: &str,
    &Pair {
        kernel,
        mount,
        subset: part,
    }: &Pair,
    scripts: &[&'static Script],
) -> Result<Column> {
    let mut column = Column {
        kernel: kernel.into(),
        mount: mount.name,
        boot: Duration::ZERO,
        cells: Vec::new(),
    };
    let scripts: Vec<&'static Script> = scripts
        .iter()
        .copied()
        .filter(|script| script.fits(mount, options) && (part == ScriptSubset::All || script.core))
        .collect();
    for group in scripts.chunk_by(|one, next| one.shares_boot(next)) {
        let setup = group[0].setup;
        let here = kernel::choose(
            &dirs.cache,
            kernel,
            setup.needs(mount),
            options.machine.as_ref(),
            options.mirror.as_deref(),
        );
        let here = match here {
            Ok(here) if setup.runs_on(&here.0) => here,
            Err(error) if !error.is::<Unavailable>() => return Err(error),
            missing => {
                let why = missing.err().map(|error| format!(": {error:#}"));
                let why = why.unwrap_or_else(|| " needs user-mode Linux".into());
                println!("{kernel} {}| {}{why}", mount.name, group[0].name);
                let skipped = group.iter().map(|script| (script.name, Verdict::Skipped));
                column.cells.extend(skipped);
                continue;
            }
        };
        let mut rest = group;
        while !rest.is_empty() {
            let mut outcome = boot(dirs, options, barge, &here, mount, rest)?;
            if outcome.is_emulator_bug() {
                outcome = boot(dirs, options, barge, &here, mount, rest)?;
            }
            if column.boot.is_zero() {
                column.boot = outcome.boot;
            }
            let ended = outcome.cases.len();
            add_results(&mut column, rest, outcome)?;
            rest = rest.get(ended + 1..).unwrap_or_default();
        }
    }
    Ok(column)
}

/// Runs scripts in one boot of a kernel on a machine until it ends.
fn boot(
    dirs: &Dirs,
    options: &Options,
    barge: &str,
    (machine, kernel): &(Machine, &'static str),
    mount: &MountConfig,
    scripts: &[&'static Script],
) -> Result<Outcome> {
    let setup = scripts[0].setup;
    let SetupConfig {
        server_commands: mut serve,
        guests: seats,
        root,
        cache,
    } = setup.config(mount, barge, &options.options, machine);
    if let Some(command) = &options.serve {
        serve = vec![command.clone()];
    }
    let scripts_dir = dirs.scripts.display().to_string();
    for command in &mut serve {
        *command = command.replace("{scripts}", &scripts_dir);
    }
    let usual = [&[("CACHE", cache), ("BARGE", barge)], mount.variables()].concat();
    let plan = Plan {
        kernel: (*kernel).into(),
        server_commands: serve,
        guests: seats,
        root,
        share: None,
        cases: scripts
            .iter()
            .map(|script| script.case(dirs, options, &usual))
            .collect::<Result<_>>()?,
        case_timeout: options.timeout / 2,
        timeout: options.timeout,
        machine: Some(machine.clone()),
        mirror: options.mirror.clone(),
        keep: false,
    };
    let prefix = format!("{kernel} {}| ", mount.name);
    let progress = |result: &CaseResult| {
        println!(
            "{prefix}--- {} {} after {:.1} s",
            result.name,
            describe(&verdict(result)),
            result.duration.as_secs_f32()
        )
    };
    let sink = || Prefixed {
        prefix: prefix.clone(),
        line: Vec::new(),
    };
    run::run(dirs, &plan, sink, progress)
}

/// Standard output of one of several guests: whole lines, each with the guest's name.
struct Prefixed {
    prefix: String,
    line: Vec<u8>,
}

impl Write for Prefixed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for byte in bytes {
            self.line.push(*byte);
            if *byte == b'\n' {
                let mut stdout = io::stdout().lock();
                stdout.write_all(self.prefix.as_bytes())?;
                stdout.write_all(&self.line)?;
                self.line.clear();
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush()
    }
}

/// Adds the cells of a boot: one for each case that ended, one for the case that broke the guest.
fn add_results(column: &mut Column, rest: &[&'static Script], outcome: Outcome) -> Result<()> {
    column.cells.extend(
        rest.iter()
            .zip(&outcome.cases)
            .map(|(script, result)| (script.name, verdict(result))),
    );
    let unfinished = rest.get(outcome.cases.len());
    let complaints = outcome.kernel_errors.join("; ");
    let trouble = match &outcome.failure {
        Some(broken) => broken.text().to_owned(),
        None if !complaints.is_empty() => format!("kernel: {complaints}"),
        None => return Ok(()),
    };
    match unfinished {
        Some(_) if outcome.boot.is_zero() => bail!(trouble),
        Some(script) => column.cells.push((script.name, Verdict::Failed(trouble))),
        // Between the scripts or at the unmount: a separate failure.
        None => column.cells.push(("(unmount)", Verdict::Failed(trouble))),
    }
    Ok(())
}

fn verdict(result: &CaseResult) -> Verdict {
    if !result.kernel_errors.is_empty() {
        return Verdict::Failed(format!("kernel: {}", result.kernel_errors.join("; ")));
    }
    match result.status {
        0 => Verdict::Passed(result.duration),
        77 => Verdict::Skipped,
        124 => Verdict::Failed("not through in time".into()),
        status => Verdict::Failed(format!("status {status}")),
    }
}

fn describe(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Passed(_) => "passed".into(),
        Verdict::Failed(why) => format!("FAILED: {why}"),
        Verdict::Skipped => "skipped".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::GuestFailure;

    #[test]
    fn an_emulator_that_halts_in_its_bus_is_started_again() {
        let halt = "the guest died\n--- end of the qemu log\nqemu-system-x86_64: ../../hw/pci/msix.c:218: msix_table_mmio_write: Assertion `addr' failed.";
        let outcome = |boot, text: &str| Outcome {
            cases: Vec::new(),
            boot: Duration::from_secs(boot),
            kernel_errors: Vec::new(),
            failure: Some(GuestFailure::Failed(text.into())),
        };
        assert!(outcome(0, halt).is_emulator_bug());
        assert!(!outcome(5, halt).is_emulator_bug());
        let ours = halt.replace("hw/pci/msix.c", "hw/virtio/vhost-user.c");
        assert!(!outcome(0, &ours).is_emulator_bug());
    }

    #[test]
    fn a_guest_that_dies_fails_the_script_it_ran() {
        let scripts: Vec<&'static Script> = SCRIPTS.iter().take(3).collect();
        let done = CaseResult {
            name: "pjdfstest".into(),
            status: 0,
            duration: Duration::from_secs(1),
            kernel_errors: Vec::new(),
        };
        let outcome = Outcome {
            cases: vec![done],
            boot: Duration::from_secs(5),
            kernel_errors: Vec::new(),
            failure: Some(GuestFailure::Failed("died".into())),
        };
        let mut column = Column {
            kernel: "6.1".into(),
            mount: "none",
            boot: Duration::ZERO,
            cells: Vec::new(),
        };
        add_results(&mut column, &scripts, outcome).unwrap();
        assert_eq!(
            column.cells,
            [
                ("pjdfstest", Verdict::Passed(Duration::from_secs(1))),
                ("opened", Verdict::Failed("died".into()))
            ]
        );
    }
}
