// A new trigger starts with the browser's time zone, also on a first visit, when the server does not know it yet.
document.addEventListener("DOMContentLoaded", () => {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const field = document.querySelector("input[data-zone]");
  if (!field || field.value === zone || !document.querySelector(`#zones [value="${zone}"]`)) return;
  field.value = zone;
  field.dispatchEvent(new Event("input", { bubbles: true })); // the preview reads the form again
});
