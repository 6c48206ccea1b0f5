//! Which route a path belongs to, for who counts. The router knows as well, but tells only those it has routed to, and for
//! an allocation. Pure.

/// Numbers routes in the order given.
pub struct Templates {
    nodes: Vec<Node>,
}

#[derive(Default)]
struct Node {
    literals: Vec<(&'static str, usize)>,
    parameter: Option<usize>,
    route: Option<usize>,
}

impl Templates {
    pub fn new(templates: impl IntoIterator<Item = &'static str>) -> Self {
        let mut all = Self { nodes: vec![Node::default()] };
        for (route, template) in templates.into_iter().enumerate() {
            let mut at = 0;
            for part in parts(template) {
                at = all.step(at, part);
            }
            all.nodes[at].route = Some(route);
        }
        all
    }

    /// `None` for a path that no template describes. Allocates nothing.
    pub fn find(&self, path: &str) -> Option<usize> {
        self.search(0, path.strip_prefix('/')?)
    }

    /// Words go before parameters, as in the router; a dead end goes back to the last choice.
    fn search(&self, at: usize, rest: &str) -> Option<usize> {
        let node = &self.nodes[at];
        let (part, rest) = match rest.split_once('/') {
            Some((part, rest)) => (part, Some(rest)),
            None => (rest, None),
        };
        let end = |next: usize| match rest {
            Some(rest) => self.search(next, rest),
            None => self.nodes[next].route,
        };
        let word = node.literals.iter().find(|(word, _)| *word == part);
        let parameter = node.parameter.filter(|_| !part.is_empty());
        word.and_then(|(_, next)| end(*next)).or_else(|| parameter.and_then(end))
    }

    fn step(&mut self, at: usize, part: &'static str) -> usize {
        let next = self.nodes.len();
        let node = &mut self.nodes[at];
        if part.starts_with('{') {
            if let Some(there) = node.parameter {
                return there;
            }
            node.parameter = Some(next);
        } else {
            if let Some((_, there)) = node.literals.iter().find(|(word, _)| *word == part) {
                return *there;
            }
            node.literals.push((part, next));
        }
        self.nodes.push(Node::default());
        next
    }
}

fn parts(template: &'static str) -> impl Iterator<Item = &'static str> {
    template.strip_prefix('/').unwrap_or(template).split('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_of_the_server_is_found_under_its_own_number() {
        let paths: Vec<&str> = crate::app::routes().iter().map(|(path, _)| *path).collect();
        let templates = Templates::new(paths.iter().copied());
        for (number, path) in paths.iter().enumerate() {
            let real = path.replace(['{', '}'], "~");
            assert_eq!(templates.find(&real), Some(number), "{real}");
        }
    }

    #[test]
    fn words_go_before_parameters_and_a_dead_end_goes_back() {
        let templates = Templates::new(["/a/stats", "/a/{id}", "/a/{id}/retry", "/a/"]);
        let found = |path: &str| templates.find(path);
        assert_eq!(
            (found("/a/stats"), found("/a/x"), found("/a/"), found("/a")),
            (Some(0), Some(1), Some(3), None)
        );
        assert_eq!((found("/a/stats/retry"), found("/a/x/retry")), (Some(2), Some(2)));
        assert_eq!((found("/a/x/other"), found("/b"), found("/"), found("")), (None, None, None, None));
    }
}
