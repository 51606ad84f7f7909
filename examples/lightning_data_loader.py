"""Lightning and accelerate with a DataLoader whose workers send through shared-memory rings: one argument.

pip install lightning accelerate
python examples/lightning_data_loader.py lightning
python examples/lightning_data_loader.py accelerate
"""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

import shmring.multiprocessing

torch.manual_seed(0)
INPUTS = torch.randn(2048, 8)
DATA = TensorDataset(INPUTS, INPUTS @ torch.arange(8.0).reshape(8, 1))
EPOCHS = 6


def loader_of_rings() -> DataLoader:
    """The loader, which either library takes as it is."""
    return DataLoader(
        DATA,
        batch_size=64,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context=shmring.multiprocessing.get_context("fork"),
    )


def with_lightning(loader: DataLoader) -> torch.Tensor:
    """Train by a `Trainer`; the weights."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = torch.nn.Linear(8, 1)

        def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
            return torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), 0.1)

    module = Module()
    silent = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    lightning.Trainer(accelerator="cpu", devices=1, max_epochs=EPOCHS, **silent).fit(module, loader)
    return module.model.weight


def with_accelerate(loader: DataLoader) -> torch.Tensor:
    """Train by a loop that `Accelerator` has prepared; the weights."""
    from accelerate import Accelerator

    accelerator, model = Accelerator(cpu=True), torch.nn.Linear(8, 1)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.Adam(model.parameters(), 0.1), loader)
    assert isinstance(loader.multiprocessing_context, shmring.multiprocessing.context.ForkContext)
    for _ in range(EPOCHS):
        for inputs, wanted in loader:
            optimizer.zero_grad()
            accelerator.backward(torch.nn.functional.mse_loss(model(inputs), wanted))
            optimizer.step()
    return model.weight


if __name__ == "__main__":
    train = {"lightning": with_lightning, "accelerate": with_accelerate}[sys.argv[1]]
    print(f"{sys.argv[1]}: weights", [round(weight, 1) for weight in train(loader_of_rings()).detach()[0].tolist()])
