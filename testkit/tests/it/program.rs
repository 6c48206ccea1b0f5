//! Tests of the `queen-testkit` program.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

fn testkit(script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_queen-testkit"));
    command.args(["sh", "-c", script]);
    command
}

#[test]
fn it_exits_as_the_command_did_and_the_command_had_a_database() {
    let output = testkit("echo \"<$QUEEN_TEST_POSTGRES>\"; exit 7").output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("<host=/") && said.contains("dbname=postgres>"), "{said}");
}

#[test]
fn a_termination_reaches_the_command_and_the_cluster() {
    let script = "trap 'exit 5' TERM; echo \"$QUEEN_TEST_POSTGRES\"; while true; do sleep 0.05; done";
    let mut child = testkit(script).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5));
    let folder = line.strip_prefix("host=").unwrap().split(' ').next().unwrap();
    assert!(!std::fs::exists(folder).unwrap(), "{folder} is still there");
}
