//! A comparison as a section for the documentation.

use super::contender::Contender;
use super::table::Table;
use crate::environment::Machine;

/// `tables` in this order: the comparison, memory, costs.
pub fn markdown(machine: &Machine, contenders: &[(&str, &Contender)], tables: &[Table; 3]) -> String {
    let mut text = format!("Measured on {}.\n\n", machine.describe());
    for (name, contender) in contenders {
        text.push_str(&format!("- {name}: {}\n", contender.describe()));
    }
    let [comparison, memory, costs] = tables;
    text.push_str(
        "\nMedians of all runs, with their range. A latency is a service time, from sending to response, or a \
         response time, from the moment at which the schedule wanted to send.\n",
    );
    text.push_str(&format!("\n{}\n{}", comparison.markdown(), memory.markdown()));
    if !costs.is_empty() {
        text.push_str(&format!("\nPer message, the last column per request:\n\n{}", costs.markdown()));
    }
    text
}

/// Tables under an introductory text.
pub fn section(machine: &Machine, words: &str, tables: &[Table]) -> String {
    let tables: String = tables.iter().map(|table| format!("\n{}", table.markdown())).collect();
    format!("Measured on {}.\n\n{words}\n{tables}", machine.describe())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Operation;
    use crate::report::contender::tests::contender;
    use crate::report::summary::tests::row;
    use crate::report::{compare, comparison_table, cost_table, memory_table};

    #[test]
    fn a_section_names_the_machine_both_brokers_and_every_table_that_is_not_empty() {
        let ours = contender(vec![row("push-1", Operation::Push, 1_000, 2)], 100.0);
        let peer = contender(Vec::new(), 300.0);
        let comparison = compare(&ours, &peer);
        let both = [("ours", &ours), ("peer", &peer)];
        let tables =
            [comparison_table(&comparison), memory_table(&both, &comparison.memory), cost_table(&both)];
        let text = markdown(&Machine::here(), &both, &tables);
        assert!(text.starts_with("Measured on commit "), "{text}");
        assert!(text.contains("- peer: queen serve (version unknown"), "{text}");
        assert!(text.contains("| push-1 | 500 | - |") && text.contains("| peer | 300 | 310 |"), "{text}");
        assert!(!text.contains("Per message"), "{text}");
    }
}
