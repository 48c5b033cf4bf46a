//! The one owning place of each field case: `cases.toml`.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde::Deserialize;

/// The backends that the list has a column for.
pub const BACKENDS: [&str; 7] = [
    "memory",
    "sqlite",
    "postgres",
    "mysql",
    "redis",
    "etcd",
    "zookeeper",
];

/// Where a field case is proven for one backend. At least one of the four is there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Cell {
    /// By these cases of the suite.
    pub run: Vec<String>,
    /// By these tests outside it: `path/of/file.rs::test`.
    pub tests: Vec<String>,
    /// What is still to come, and with what.
    pub later: Option<String>,
    /// It cannot happen there, for this reason; the others are empty then.
    pub not_applicable: Option<String>,
}

/// One field case and where it is proven.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct FieldCase {
    /// Its number.
    pub number: u16,
    /// Its section.
    pub section: String,
    /// What goes wrong, in a few words.
    pub title: String,
    /// The cell of every backend that has none of its own.
    pub all: Option<Cell>,
    /// The cells of single backends.
    #[serde(flatten)]
    pub own: BTreeMap<String, Cell>,
}

/// A case of the suite that does not apply to some backends.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exemption {
    case: String,
    backends: Vec<String>,
    reason: String,
}

/// The parsed list.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    pending: Vec<String>,
    field: Vec<FieldCase>,
    exempt: Vec<Exemption>,
}

impl Catalogue {
    /// The list of this release of the suite.
    ///
    /// # Panics
    /// Never in a release: a test parses the list.
    #[must_use]
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Catalogue> = OnceLock::new();
        SHARED.get_or_init(|| match toml::from_str(include_str!("../cases.toml")) {
            Ok(catalogue) => catalogue,
            Err(error) => panic!("cases.toml: {error}"),
        })
    }

    /// The field cases in their order.
    #[must_use]
    pub fn field_cases(&self) -> &[FieldCase] {
        &self.field
    }

    /// Backends whose harness does not exist yet.
    #[must_use]
    pub fn pending(&self) -> &[String] {
        &self.pending
    }

    /// Why a case of the suite does not apply to a backend, if it does not.
    #[must_use]
    pub fn exemption(&self, case: &str, backend: &str) -> Option<String> {
        self.exempt
            .iter()
            .find(|e| e.case == case && e.backends.iter().any(|b| b == backend))
            .map(|e| e.reason.clone())
    }

    /// Each exemption as case, backend and reason.
    pub fn exemptions(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.exempt.iter().flat_map(|e| {
            e.backends
                .iter()
                .map(move |b| (e.case.as_str(), b.as_str(), e.reason.as_str()))
        })
    }
}

impl FieldCase {
    /// Where this field case is proven for a backend.
    #[must_use]
    pub fn cell(&self, backend: &str) -> Option<&Cell> {
        self.own.get(backend).or(self.all.as_ref())
    }
}
