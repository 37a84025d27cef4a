//! The sections of a policy that surfaces read.

use super::Policy;

impl Policy {
    /// The sections that configure a server: `[serve]`, `[tenant.NAME]`, `[upstream.NAME]` and `[hook.NAME]`, as
    /// TOML.
    #[must_use]
    pub fn server_sections(&self) -> toml::Table {
        let sections = [
            ("serve", &self.serve),
            ("tenant", &self.tenant),
            ("upstream", &self.upstream),
            ("hook", &self.hook),
        ];
        sections.into_iter().map(|(name, table)| (name.to_owned(), table.clone().into())).collect()
    }

    /// The section `[prices]`: what tokens of models cost, as TOML.
    #[must_use]
    pub fn prices(&self) -> &toml::Table {
        &self.prices
    }
}
