// A prediction on a page without a kernel: the answer below it is folded until the reader chooses.

// The answer is the next cell of code with the text after it, up to the next cell or heading.
function answerOf(card) {
  const found = [];
  let cells = 0;
  for (let next = card.closest("div.cell")?.nextElementSibling; next; next = next.nextElementSibling) {
    if (next.matches("section, h2, h3")) break;
    if (next.matches("div.cell") && ++cells > 1) break;
    found.push(next);
  }
  return found;
}

function ask(card) {
  const said = card.querySelector(".cs336-said");
  const buttons = [...card.querySelectorAll("button[data-option]")];
  const { answer } = card.dataset;
  const folded = answerOf(card);
  const unfold = () => {
    folded.forEach((part) => part.classList.remove("cs336-folded"));
    reachScrolling(); // course.js could not measure what was folded
  };
  const choose = (chosen) => {
    for (const button of buttons) {
      const { option } = button.dataset;
      button.setAttribute("aria-disabled", "true");
      button.setAttribute("aria-pressed", String(button === chosen));
      button.classList.toggle("cs336-chosen", button === chosen);
      button.querySelector(".cs336-mark").textContent = option === answer ? "✓" : button === chosen ? "✗" : "";
    }
    const { option, why } = chosen.dataset;
    said.textContent = option === answer ? `You chose “${option}”, and that is right.` : `You chose “${option}”. It is “${answer}”. ${why}`;
    unfold();
  };
  for (const button of buttons) {
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => button.getAttribute("aria-disabled") || choose(button));
  }
  const skip = document.createElement("button");
  skip.type = "button";
  skip.className = "cs336-skip";
  skip.textContent = "Show the answer";
  skip.addEventListener("click", () => {
    unfold();
    skip.remove();
  });
  card.append(skip);
  buttons.forEach((button) => button.addEventListener("click", () => skip.remove()));
  folded.forEach((part) => part.classList.add("cs336-folded"));
}

document.addEventListener("DOMContentLoaded", () => document.querySelectorAll(".cs336-guess").forEach(ask));
