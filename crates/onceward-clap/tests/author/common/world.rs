// The world of every case: `include!`d, so that each case shows only its mistake.

struct Shop;

impl World for Shop {
    type Options = NoOptions;

    fn identity(_: &NoOptions) -> String {
        "shop".to_owned()
    }

    fn open(_: &NoOptions) -> Result<Self, Fault> {
        Ok(Shop)
    }

    fn open_read_only(_: &NoOptions) -> Result<Self, Fault> {
        Ok(Shop)
    }
}

impl Shop {
    fn sell(&mut self) -> u32 {
        1
    }
}
