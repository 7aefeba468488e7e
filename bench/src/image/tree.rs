//! The contents of the images: a runtime installed on this host, its shared libraries, and programs
//! for it.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::run_command;
use command::tools::find;

/// A language runtime.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runtime {
    Node,
    Java,
}

/// The program to run: one that prints a line, or one that first loads a hundred modules, and many
/// of the runtime's own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Program {
    Hello,
    Small,
}

/// Modules of the small program, each a file of its own.
const MODULES: usize = 100;

/// The output of every program.
const EXPECTED_OUTPUT: &str = "hello\n";

const NODE_SMALL: &str = "for (const name of ['http', 'https', 'zlib', 'crypto', 'stream', 'worker_threads', 'readline', 'dns'])
  require(name);
let sum = 0;
for (let n = 0; n < 100; n++) sum += require('./modules/m' + n).value;
console.log(sum === 4950 ? 'hello' : sum);
";

const JAVA_HELLO: &str = "public class Hello { public static void main(String[] a) { System.out.println(\"hello\"); } }\n";

const JAVA_SMALL: &str = "import java.util.stream.*;
public class Small {
    public static void main(String[] a) throws Exception {
        java.net.http.HttpClient.newHttpClient();
        java.security.MessageDigest.getInstance(\"SHA-256\").digest(new byte[1 << 16]);
        java.util.regex.Pattern.compile(\"[a-z]+\").matcher(\"hello\").matches();
        java.time.ZonedDateTime.now().toString();
        int sum = IntStream.range(0, 100).map(n -> {
            try { return (int) Class.forName(\"M\" + n).getField(\"VALUE\").get(null); }
            catch (ReflectiveOperationException e) { throw new RuntimeException(e); }
        }).sum();
        System.out.println(sum == 4950 ? \"hello\" : sum);
    }
}
";

impl Runtime {
    pub(super) const ALL: [Runtime; 2] = [Runtime::Node, Runtime::Java];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Runtime::Node => "node",
            Runtime::Java => "java",
        }
    }

    /// Makes a tree of the runtime at `top`; returns the reason if that is impossible.
    pub(crate) fn make(self, top: &Path) -> Result<(), String> {
        let describe = |error: std::io::Error| error.to_string();
        for dir in ["bin", "lib"] {
            fs::create_dir_all(top.join(dir)).map_err(describe)?;
        }
        let (program, package) = match self {
            Runtime::Node => ("node", "nodejs"),
            Runtime::Java => ("javac", "openjdk-17-jdk-headless"),
        };
        let program = find(program).and_then(|program| program.canonicalize().ok());
        let program = program.ok_or_else(|| format!("Debian's package {package} brings it"))?;
        let binary = match self {
            Runtime::Node => {
                let binary = top.join("bin/node");
                // A file that this process writes is busy in each child that a thread of it starts.
                run_command(Command::new("cp").arg(&program).arg(&binary))?;
                node_programs(top).map_err(describe)?;
                binary
            }
            Runtime::Java => {
                let home = program.parent().and_then(Path::parent);
                let home = home.ok_or("javac is in no directory of its own")?;
                // Follows links, because Debian keeps parts of the JDK in /etc, and preserves
                // modification times, because the JDK checks those of its own files. Dangling
                // links, to files of other packages, are left out.
                let copied =
                    run_command(Command::new("cp").arg("-aL").arg(home).arg(top.join("jdk")));
                if !top.join("jdk/lib/modules").exists() {
                    copied?;
                }
                symlink("../jdk/bin/java", top.join("bin/java")).map_err(describe)?;
                java_programs(top)?;
                home.join("bin/java")
            }
        };
        for library in libraries(&binary)? {
            let name = library.file_name().unwrap_or_default();
            fs::copy(&library, top.join("lib").join(name)).map_err(describe)?;
        }
        Ok(())
    }

    /// Runs `program` of the tree at `top`, and checks its output.
    pub(super) fn run(self, program: Program, top: &Path) -> Result<(), String> {
        let mut command = Command::new(top.join("bin").join(self.name()));
        match (self, program) {
            (Runtime::Node, Program::Hello) => command.arg(top.join("hello.js")),
            (Runtime::Node, Program::Small) => command.arg(top.join("small.js")),
            (Runtime::Java, program) => {
                let class = if program == Program::Hello {
                    "Hello"
                } else {
                    "Small"
                };
                // The JVM would write these data outside the tree.
                command.args(["-XX:-UsePerfData", "-cp"]);
                command.arg(top.join("classes")).arg(class)
            }
        };
        command.env("LD_LIBRARY_PATH", top.join("lib"));
        let output = command.stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("{}: {error}", self.name()))?;
        match output.stdout == EXPECTED_OUTPUT.as_bytes() {
            true => Ok(()),
            false => Err(format!(
                "expected '{}' of {}, got '{}{}'",
                EXPECTED_OUTPUT.trim(),
                self.name(),
                String::from_utf8_lossy(&output.stdout).trim(),
                String::from_utf8_lossy(&output.stderr).trim(),
            )),
        }
    }
}

impl Program {
    pub(super) const ALL: [Program; 2] = [Program::Hello, Program::Small];

    pub(super) fn name(self) -> &'static str {
        match self {
            Program::Hello => "hello",
            Program::Small => "small",
        }
    }
}

fn node_programs(top: &Path) -> std::io::Result<()> {
    fs::write(top.join("hello.js"), "console.log('hello');\n")?;
    fs::write(top.join("small.js"), NODE_SMALL)?;
    for number in 0..MODULES {
        let dir = top.join(format!("modules/m{number}"));
        fs::create_dir_all(&dir)?;
        fs::write(dir.join("package.json"), "{\"main\": \"main.js\"}\n")?;
        fs::write(dir.join("main.js"), format!("exports.value = {number};\n"))?;
    }
    Ok(())
}

fn java_programs(top: &Path) -> Result<(), String> {
    let describe = |error: std::io::Error| error.to_string();
    let (sources, classes) = (top.join("sources"), top.join("classes"));
    fs::create_dir_all(&sources).map_err(describe)?;
    let mut modules = String::new();
    for number in 0..MODULES {
        let _ = writeln!(
            modules,
            "class M{number} {{ public static int VALUE = {number}; }}"
        );
    }
    let modules = ("Modules.java", modules.as_str());
    let mut javac = Command::new(top.join("jdk/bin/javac"));
    javac.arg("-d").arg(&classes);
    for (name, text) in [
        ("Hello.java", JAVA_HELLO),
        ("Small.java", JAVA_SMALL),
        modules,
    ] {
        let source = sources.join(name);
        fs::write(&source, text).map_err(describe)?;
        javac.arg(source);
    }
    run_command(&mut javac)
}

/// Returns the shared libraries of a program without the dynamic loader, which is always the
/// host's.
fn libraries(program: &Path) -> Result<Vec<PathBuf>, String> {
    let output = Command::new("ldd").arg(program).output();
    let output = output.map_err(|error| format!("ldd: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let paths = text.lines().filter_map(|line| {
        let (_, found) = line.split_once("=> ")?;
        Some(PathBuf::from(found.split_whitespace().next()?))
    });
    Ok(paths.filter(|path| path.is_absolute()).collect())
}
