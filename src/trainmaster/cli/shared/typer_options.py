"""Options that commands of typer share."""

from typing import Annotated

import typer

Output = Annotated[str, typer.Option("-o", "--output", help="table or json.")]
