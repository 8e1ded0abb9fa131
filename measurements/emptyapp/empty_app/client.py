"""A device that answers at once, with nothing."""

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer."""
    return Message(RecordDict({"empty": ConfigRecord({"size": 0})}), reply_to=message)
