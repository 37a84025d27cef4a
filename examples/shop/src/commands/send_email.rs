//! `shop send-email`: nothing tells whether an email went out, so a doubt stays until someone settles it.

use clap::Args;
use onceward_clap::{Applied, Fault, Mutating, Op, Plan};
use serde::Serialize;

use crate::shop::{Email, Shop};

/// Send an email
#[derive(Args, Serialize)]
pub(crate) struct SendEmail {
    /// The recipient
    #[arg(long, value_parser = address)]
    to: String,
    /// The subject
    #[arg(long)]
    subject: String,
}

impl Mutating for SendEmail {
    const NAME: &'static str = "send-email";
    const EXAMPLE: &'static [&'static str] = &["--to", "ada@example.com", "--subject", "Welcome"];
    type World = Shop;
    type Data = Email;

    fn plan(&self, _shop: &Shop) -> Result<Plan, Fault> {
        Ok(Plan::create(format_args!("an email to {}: {}", self.to, self.subject)))
    }

    fn apply(&self, op: Op<'_, Shop>) -> Result<Applied<Email>, Fault> {
        let (shop, dispatched) = op.dispatch()?;
        Ok(dispatched.created(shop.send_email(&self.to, &self.subject)?))
    }
}

fn address(text: &str) -> Result<String, String> {
    match text.split_once('@') {
        Some((name, host)) if !name.is_empty() && !host.is_empty() => Ok(text.to_owned()),
        Some(_) | None => Err("not an address; write name@host".to_owned()),
    }
}
